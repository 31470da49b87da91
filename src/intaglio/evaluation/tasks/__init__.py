"""What is asked: tasks of any published layout, read into one form."""
