"""Complete small projects that run as they are, and the drafter that the demo starts from."""
