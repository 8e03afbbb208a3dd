"""Child processes: they are started, limited, asked and ended here, and end with their parents."""
