"""What only NVIDIA's Hopper has: tensor maps, and warps with work of their own."""
