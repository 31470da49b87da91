"""Which road suits a task: advised from what the user says of it, or measured on the user's own rows."""
