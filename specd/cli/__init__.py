"""The command line: `specd serve | generate | models`."""
