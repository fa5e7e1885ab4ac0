"""Lists: text or CSV files with lines for images."""
