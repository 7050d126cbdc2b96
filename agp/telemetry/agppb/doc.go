// Package agppb is generated from agp.proto: the protocol between plugin and
// engine and the public schema of flow records. Conversion, framing and limits
// are in telemetry/wire.
package agppb

//go:generate sh generate.sh
