"""What an acceptance length is worth."""
