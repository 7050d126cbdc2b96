package dashboards

import (
	"path"
)

func sourceName(l Language) string {
	return map[Language]string{InfluxQL: "AGP InfluxQL", Flux: "AGP Flux"}[l]
}

func sourceUID(l Language) string { return "agp-" + string(l) }

// Files returns everything that is generated, by path below this folder.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, l := range Languages {
		for i := range All {
			b, err := All[i].JSON(l)
			if err != nil {
				return nil, err
			}
			files[path.Join(string(l), All[i].Name+".json")] = b
		}
	}
	return files, nil
}
