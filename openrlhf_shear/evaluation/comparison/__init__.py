"""Tables, pictures and a page over runs, in the paper's kinds: `runs` reads, `cells` groups seeds, the others draw."""
