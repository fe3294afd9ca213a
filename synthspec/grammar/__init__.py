"""What production writes, without what it says."""
