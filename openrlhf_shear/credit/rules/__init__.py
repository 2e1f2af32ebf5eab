"""Built-in rules, one file each; `config.rules` has their table."""
