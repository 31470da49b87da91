"""What goes over the wire: the requests that are taken and the answers that are given, as pydantic models."""
