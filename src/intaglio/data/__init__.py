"""The user's rows until they are token ids with a mask: read, recognised, encoded, checked, packed, mixed, split."""
