"""Our networks beside the same in PyTorch, which only this folder needs."""
