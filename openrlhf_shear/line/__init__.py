"""The command line of training: its flags, files of flags, older spellings, keys and defaults of the placement."""
