"""Child processes: started, limited, asked, and ended with whoever started them."""
