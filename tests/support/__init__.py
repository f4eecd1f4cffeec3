"""What tests share: each thing that several of them need is made in one place."""
