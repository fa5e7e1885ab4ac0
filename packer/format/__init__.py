"""The pack on disk: manifest, index, columns, maps; verify and repair. Imports no torch."""
