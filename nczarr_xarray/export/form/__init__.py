"""How a variable is stored: its type, fill value, packing, text and attributes, decided here alone.

What is asked for is applied, or an error. What was inherited from where the data were read is
adapted to the values, or left out. What the target cannot hold is converted with a warning. Nothing
else changes.
"""
