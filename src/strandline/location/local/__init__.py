"""Objects as files of a directory."""
