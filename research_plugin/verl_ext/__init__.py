"""The only code that imports veRL. Nothing imports it: recipes name its classes, veRL loads them."""
