"""Arguments to bytes and back."""
