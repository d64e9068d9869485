"""What a trained model attends to: maps, numbers, figures, tables and a viewer."""
