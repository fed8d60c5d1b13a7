"""What people look at: tables, later pages and pictures."""
