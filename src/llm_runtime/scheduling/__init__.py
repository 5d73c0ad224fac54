"""In what order requests run: bands, flows, order, and the presets made of them."""
