"""Many processes: meshes, what is shared out among them, and checkpoints that any layout goes on with."""
