"""Tables, pictures and one page over runs, in the paper's kinds: `runs` reads, `cells` groups seeds, the rest draws."""
