"""Other tools' words: configs, files and calls of theirs, translated. Nothing outside this folder knows them."""
