"""What only NVIDIA's Hopper has: tensor maps, and warp groups with work of their own."""
