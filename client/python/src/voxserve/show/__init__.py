"""Shows clouds and answers to people: short texts, pictures from above, tables."""
