"""What watches the engine: observers of its events. The core imports none of them."""
