package traffic

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
)

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// vector writes what body appends, preceded by its length in n bytes.
func vector(b []byte, n int, body func([]byte) []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, n)...)
	b = body(b)
	size := len(b) - start - n
	for i := range n {
		b[start+i] = byte(size >> (8 * (n - 1 - i)))
	}
	return b
}

func extension(b []byte, id uint16, body func([]byte) []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	return vector(b, 2, body)
}

func u16(b []byte, values ...uint16) []byte {
	for _, v := range values {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

// ClientHello is a TLS 1.3 client's first record for the named server.
func ClientHello(r *rand.Rand, server string) []byte {
	b := []byte{22, 3, 1}
	return vector(b, 2, func(b []byte) []byte {
		b = append(b, 1)
		return vector(b, 3, func(b []byte) []byte {
			b = append(b, 3, 3)
			b = append(b, random(r, 32)...)
			b = vector(b, 1, func(b []byte) []byte { return append(b, random(r, 32)...) })
			b = vector(b, 2, func(b []byte) []byte {
				return u16(b, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x9c, 0x9d, 0x2f, 0x35)
			})
			b = append(b, 1, 0)
			return vector(b, 2, func(b []byte) []byte {
				b = extension(b, 0, func(b []byte) []byte {
					return vector(b, 2, func(b []byte) []byte {
						b = append(b, 0)
						return vector(b, 2, func(b []byte) []byte { return append(b, server...) })
					})
				})
				b = extension(b, 10, func(b []byte) []byte {
					return vector(b, 2, func(b []byte) []byte { return u16(b, 29, 23, 24) })
				})
				b = extension(b, 11, func(b []byte) []byte { return append(b, 1, 0) })
				b = extension(b, 13, func(b []byte) []byte {
					return vector(b, 2, func(b []byte) []byte { return u16(b, 0x403, 0x804, 0x401, 0x503, 0x805, 0x501, 0x806, 0x601) })
				})
				b = extension(b, 16, func(b []byte) []byte {
					return vector(b, 2, func(b []byte) []byte { return append(b, "\x02h2\x08http/1.1"...) })
				})
				b = extension(b, 43, func(b []byte) []byte { return append(b, 4, 3, 4, 3, 3) })
				b = extension(b, 51, func(b []byte) []byte {
					return vector(b, 2, func(b []byte) []byte {
						b = u16(b, 29)
						return vector(b, 2, func(b []byte) []byte { return append(b, random(r, 32)...) })
					})
				})
				pad := max(0, 508-len(b)) // browsers fill up to 512 bytes
				return extension(b, 21, func(b []byte) []byte { return append(b, make([]byte, pad)...) })
			})
		})
	})
}

// ServerHello is the answer of a TLS 1.3 server, followed by the start of its encrypted flight.
func ServerHello(r *rand.Rand) []byte {
	b := []byte{22, 3, 3}
	b = vector(b, 2, func(b []byte) []byte {
		b = append(b, 2)
		return vector(b, 3, func(b []byte) []byte {
			b = append(b, 3, 3)
			b = append(b, random(r, 32)...)
			b = vector(b, 1, func(b []byte) []byte { return append(b, random(r, 32)...) })
			b = append(b, 0x13, 0x01, 0)
			return vector(b, 2, func(b []byte) []byte {
				b = extension(b, 43, func(b []byte) []byte { return append(b, 3, 4) })
				return extension(b, 51, func(b []byte) []byte {
					b = u16(b, 29)
					return vector(b, 2, func(b []byte) []byte { return append(b, random(r, 32)...) })
				})
			})
		})
	})
	b = append(b, 20, 3, 3, 0, 1, 1)
	return append(b, 23, 3, 3, 0x0a, 0x40)
}

// ApplicationData is the head of an encrypted TLS record with n bytes of content.
func ApplicationData(n int) []byte {
	return []byte{23, 3, 3, byte(n >> 8), byte(n)}
}

// HTTPRequest is a GET request.
func HTTPRequest(host, path string) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n"+
		"Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\nAccept-Language: en-US,en;q=0.5\r\nConnection: keep-alive\r\n\r\n", path, host)
}

// HTTPResponse is the head of a response with a body of n bytes.
func HTTPResponse(n int) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: text/html; charset=utf-8\r\n"+
		"Content-Length: %d\r\nConnection: keep-alive\r\n\r\n<!DOCTYPE html><html><head>", n)
}

func dnsName(b []byte, name string) []byte {
	for _, label := range strings.Split(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0)
}

// DNSQuery asks for the addresses of a name.
func DNSQuery(id uint16, name string, aaaa bool) []byte {
	b := u16(nil, id, 0x0100, 1, 0, 0, 0)
	return u16(dnsName(b, name), dnsType(aaaa), 1)
}

func dnsType(aaaa bool) uint16 {
	if aaaa {
		return 28
	}
	return 1
}

// DNSAnswer answers DNSQuery with one address.
func DNSAnswer(id uint16, name string, address netip.Addr) []byte {
	b := u16(nil, id, 0x8180, 1, 1, 0, 0)
	b = u16(dnsName(b, name), dnsType(address.Is6()), 1)
	raw := address.AsSlice()
	b = u16(b, 0xc00c, dnsType(address.Is6()), 1, 0, 300, uint16(len(raw)))
	return append(b, raw...)
}

// SSHBanner is the identification line of an SSH end point.
func SSHBanner(server bool) []byte {
	if server {
		return []byte("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")
	}
	return []byte("SSH-2.0-OpenSSH_9.7\r\n")
}

// SSHKexInit is the key exchange proposal that follows the banner.
func SSHKexInit(r *rand.Rand) []byte {
	lists := []string{
		"sntrup761x25519-sha512@openssh.com,curve25519-sha256,ecdh-sha2-nistp256,diffie-hellman-group16-sha512",
		"ssh-ed25519,ecdsa-sha2-nistp256,rsa-sha2-512,rsa-sha2-256",
		"chacha20-poly1305@openssh.com,aes128-ctr,aes256-ctr,aes256-gcm@openssh.com",
		"chacha20-poly1305@openssh.com,aes128-ctr,aes256-ctr,aes256-gcm@openssh.com",
		"umac-128-etm@openssh.com,hmac-sha2-256-etm@openssh.com,hmac-sha2-512",
		"umac-128-etm@openssh.com,hmac-sha2-256-etm@openssh.com,hmac-sha2-512",
		"none,zlib@openssh.com", "none,zlib@openssh.com", "", "",
	}
	return vector(nil, 4, func(b []byte) []byte {
		b = append(b, 6, 20)
		b = append(b, random(r, 16)...)
		for _, l := range lists {
			b = vector(b, 4, func(b []byte) []byte { return append(b, l...) })
		}
		b = append(b, 0, 0, 0, 0, 0)
		return append(b, make([]byte, 6)...)
	})
}

// QUICInitial is a client's first QUIC version 1 datagram; its encrypted part is random.
func QUICInitial(r *rand.Rand) []byte {
	b := []byte{0xc3, 0, 0, 0, 1, 8}
	b = append(b, random(r, 8)...)
	b = append(b, 0, 0, 0x44, 0xd0)
	return append(b, random(r, 1200-len(b))...)
}

// NTP is a client's request or a server's answer.
func NTP(r *rand.Rand, server bool) []byte {
	b := make([]byte, 48)
	b[0] = 0x23
	if server {
		copy(b, []byte{0x24, 2, 6, 0xe7})
	}
	copy(b[40:], random(r, 8))
	return b
}
