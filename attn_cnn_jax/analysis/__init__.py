"""What the heads of a trained network attend to: arrays, numbers, figures."""
