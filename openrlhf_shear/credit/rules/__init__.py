"""The built-in rules, one file each; `config.rules` has the table of them."""
