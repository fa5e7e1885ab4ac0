"""What file formats look like inside: each module walks one of them, and says where things are. What they mean, labels
or the records of a pack, is for those who ask: containers, sources, and files of other tools that are adopted."""
