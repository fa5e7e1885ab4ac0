"""What each image format's header says: one module a format, each with ``read(data, complete) -> Header``."""
