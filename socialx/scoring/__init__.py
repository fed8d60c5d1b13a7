"""How good a forecast is, and under which protocol that was measured."""
