"""Our networks beside PyTorch, and on machines that are not at hand."""
