"""What people look at: tables on a terminal, pictures, and pages."""
