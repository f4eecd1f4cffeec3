"""Scripts started by path in processes of their own, which import neither the kit nor unsloth."""
