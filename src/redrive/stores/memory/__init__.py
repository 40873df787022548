"""A store in the memory of its process, for tests: the reference that the other engines are held to."""
