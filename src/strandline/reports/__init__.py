"""What is told of a database."""
