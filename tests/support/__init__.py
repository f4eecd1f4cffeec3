"""Objects that several test files need, each made in one place."""
