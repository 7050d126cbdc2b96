// Command agp-dashboards writes the generated files of package dashboards into
// the working directory.
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/agp-net/telegraf-agp/configs/dashboards"
)

func main() {
	files, err := dashboards.Files()
	if err != nil {
		log.Fatal(err)
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
