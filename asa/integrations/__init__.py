"""The library's methods inside other people's training loops. Each module needs its own optional package."""
