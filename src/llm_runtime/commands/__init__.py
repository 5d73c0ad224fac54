"""What the command line does besides serving; each module is imported when its command runs."""
