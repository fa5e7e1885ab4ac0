"""The annotation of an image: its fields, and what can be done with any of them."""
