"""What keeps tables small."""
