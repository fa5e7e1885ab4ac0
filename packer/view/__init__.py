"""Shows a pack in the browser: a local page, and a contact sheet in one file."""
