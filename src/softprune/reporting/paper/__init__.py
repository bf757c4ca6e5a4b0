"""The figures and tables of the paper on soft threshold reparameterization, remade from its published numbers."""
