"""What synchronises gradients; see ``api.py`` for the contract and ``registry.py`` for the names."""
