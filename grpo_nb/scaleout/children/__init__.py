"""What runs in processes of its own and imports no kit."""
