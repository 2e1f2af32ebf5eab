"""Does the distance track reasoning quality? run makes tables, analyses read them, pictures and findings show these."""
